"""Tables of people: workbooks, files with separators, and what their columns hold."""

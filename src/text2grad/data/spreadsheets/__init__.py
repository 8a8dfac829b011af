"""Tables as people keep them: workbooks, files with separators, and what their columns hold."""

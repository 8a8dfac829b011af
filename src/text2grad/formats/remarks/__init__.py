"""People's own remarks: a table or JSON objects with a response and what somebody said of it."""

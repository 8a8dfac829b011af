"""Good and poor words of a response: quoted, marked in a tool, or marked up in the text."""

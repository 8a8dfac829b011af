"""Words of a response that are good or poor: quoted in a comment, marked in a tool, or marked up in
the text."""

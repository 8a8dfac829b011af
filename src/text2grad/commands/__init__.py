"""The commands of `text2grad`: one class each, with options as fields and help as the docstring.

`@command(name)` on a `Stage` declares a command; the parser and docs/cli.md are generated from
these classes. Heavy modules are imported only when a command runs, so that `--help` is fast.
"""

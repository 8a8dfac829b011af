"""The commands of `text2grad`, a class each: its options are fields, its help is the docstring.

A command is declared once, by `@command(name)` over a `Stage`; the parser, the page docs/cli.md and
the program are made from these classes. Nothing heavy is imported before a command has been chosen,
so that `--help` is quick.
"""

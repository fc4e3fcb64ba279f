"""One file a command: NAME.py is `python -m pipeline NAME`, found by cli/parser.py.

It has

- `HELP`: one line, for --help;
- `add_arguments(parser)`: its flags;
- `run(options)`: what it does with them.

All files are imported to build the parser, so torch and what imports it are imported within `run`.
"""

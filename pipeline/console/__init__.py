"""What a user sees while a command runs. Plain Python and tqdm.

messages: information that --quiet leaves out; progress: a bar on a terminal, a few plain lines in a log file;
typed: flags and commands as the user types them, of make or of the command line; similar: "did you mean"; rank: which
process of a run this is, and whether it prints and writes.
"""

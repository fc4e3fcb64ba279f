"""`python -m pipeline VERB ...`: exit status 0 done, 2 the user's mistake, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys

from pipeline import Interrupted, UserError, cli


def main() -> int:
    args = sys.argv[1:]
    if not args:
        cli.parser().print_help()
        return 2
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for number in (signal.SIGTERM, signal.SIGUSR1):  # as Ctrl-C; training has handlers of its own
        signal.signal(number, signal.default_int_handler)
    try:
        cli.main(args)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        from pipeline.folders import is_no_room, reason

        places = (PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
        if not is_no_room(error) and not isinstance(error, places):
            raise
        what = "read or written" if isinstance(error, PermissionError) else "written"
        print(f"Error: {error.filename or 'A file'} could not be {what}: {reason(error)}.", file=sys.stderr)
        return 2
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "wandb":
            raise
        print(f"Error: Weights & Biases says: {' '.join(str(error).split())}", file=sys.stderr)
        print("WANDB_MODE=offline does without it, and `make sync` uploads later.", file=sys.stderr)
        return 2
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        print("Interrupted.", file=sys.stderr)  # Lightning's way to say so, outside of training steps
        return 130
    except Interrupted:
        print("Interrupted; a checkpoint is written, RESUME=1 goes on from it.", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

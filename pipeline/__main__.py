"""`python -m pipeline VERB ...`: exit status 0 done, 2 the user's mistake, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys

from pipeline import UserError

OVERVIEW = """\
usage: python -m pipeline VERB ...

  data       build the token store of a corpus and report on it
  pretrain   pretrain an encoder on raw text
  finetune   fine-tune an encoder on a labelled task
  zeroshot   ask a pretrained encoder about a task by prompts
  worth      zero-shot beside fine-tunes on few rows: how many labels is a prompt worth?
  lm-eval    run lm-evaluation-harness on an encoder
  predict    labels or tags of new texts, from a fine-tuned model
  compare    models x tasks x arms x seeds in one table
  new-task   the YAML file of a new data set, and a test of it
  try        look at what an encoder knows: text that goes on, masks filled, neighbours of a word
  evaluate   losses and bits per byte of an encoder on a text
  audit      check masks, labels and leaks of a model
  profile    where the time of a training step goes
  verify-resume  does a killed run end as an uninterrupted one, bit for bit?
  sweep      a sweep of Weights & Biases over one stage
  sync       upload offline runs to Weights & Biases
  import-elmo  published ELMo weights -> an encoder folder

python -m pipeline VERB --help lists the flags of a verb; `make help` the same as variables of make."""


def main() -> int:
    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help"):  # before torch is imported
        print(OVERVIEW)
        return 0 if args else 2
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for number in (signal.SIGTERM, signal.SIGUSR1):  # as Ctrl-C; training has handlers of its own
        signal.signal(number, signal.default_int_handler)
    from pipeline import cli
    from pipeline.checkpoints import Interrupted

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

"""`make push`: a folder of an encoder or model, with its card, to the Hugging Face hub."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pipeline.cli.arguments import Parser, place
from pipeline.errors import UserError

HELP = "upload an encoder or model folder to the Hugging Face hub"
NAME = re.compile(r"[\w.-]+/[\w.-]+")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--from", dest="folder", type=place, required=True, help="encoder or model folder")
    parser.add_argument("--repo", required=True, help="name on the hub, USER/NAME; it is made if it is not there")
    parser.add_argument("--public", action="store_true", help="let everybody see a new repository; private otherwise")
    parser.add_argument("--license", default=None, help="of the weights, as apache-2.0; into the card")
    parser.add_argument("--language", default=None, help="code of the language, as en; into the card")
    parser.add_argument("--base-model", default=None, help="the encoder's name on the hub; into the card of a model")
    parser.add_argument("--dry-run", action="store_true", help="list files and sizes, upload nothing")


def run(options: argparse.Namespace) -> None:
    from pipeline.cards.publish import files_of
    from pipeline.models.folder import read_config

    folder: Path = options.folder
    if not NAME.fullmatch(options.repo):
        raise UserError(f"--repo is {options.repo}; it must be USER/NAME.")
    read_config(folder)  # refuses what is damaged
    about = {name: getattr(options, name) for name in ("license", "language", "base_model")}
    files = files_of(folder, options.repo, about)
    sizes = {name: len(file) if isinstance(file, bytes) else file.stat().st_size for name, file in files.items()}
    if options.dry_run:
        for name, size in sizes.items():
            print(f"{size:>15,}  {name}")
        access = "public" if options.public else "private"
        print(f"{sum(sizes.values()):>15,}  bytes would go to {options.repo} ({access}); nothing was uploaded.")
        return
    print(f"Uploaded {len(files)} files, {sum(sizes.values()):,} bytes: {upload(files, options.repo, options.public)}")


def upload(files: dict[str, Path | bytes], repo: str, public: bool) -> str:
    """Uploads files in one commit; returns the address.

    Raises:
        UserError: no token, or the hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    from pipeline.data.hub import NETWORK

    if get_token() is None:
        raise UserError("There is no token of the Hugging Face hub: set HF_TOKEN, or run `hf auth login` first.")
    api = HfApi(library_name="pretrain-finetune")
    try:
        address = api.create_repo(repo, private=not public, exist_ok=True)
        operations = [CommitOperationAdd(name, file) for name, file in files.items()]
        api.create_commit(repo, operations, commit_message="Weights, tokenizer and card")
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in NETWORK:
            raise
        message = " ".join(str(error).split())[:300]
        raise UserError(f"The hub did not take {repo}: {message or type(error).__name__}") from None
    return str(address)

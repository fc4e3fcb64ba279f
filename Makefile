# `make help` is the manual. Each target installs what it needs first.
MODEL ?= bert
CORPUS ?= sample
TASK ?= sentiment
ARM ?= full
SEED ?= 0
DATA ?=
FROM ?=
OUT ?=
RESUME ?=
OVERWRITE ?=
ARGS ?=
SEEDS ?=
SHOTS ?= 0
NAME ?=
KIND ?= sentence
MODELS ?=
TASKS ?=
ARMS ?=
ROWS ?=
PROMPT ?=
WORD ?=
PYTHON ?= python3

PROMPT_ORIGIN := $(origin PROMPT)
override PROMPT := $(value PROMPT)# as it is: no make variables in it
export PROMPT

BIN := .venv/bin
FLAGS = --model "$(MODEL)" --seed "$(SEED)" $(if $(DATA),--data "$(DATA)") $(if $(OUT),--out "$(OUT)") \
	$(if $(RESUME),--resume) $(if $(OVERWRITE),--overwrite) $(ARGS)

# A variable that a target does not use is refused: it would be passed over in silence.
VARIABLES := MODEL CORPUS TASK ARM SEED DATA FROM OUT RESUME OVERWRITE SEEDS SHOTS NAME KIND MODELS TASKS ARMS ROWS WORD
given = $(foreach name,$(VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))) \
	$(if $(filter command,$(firstword $(PROMPT_ORIGIN))),PROMPT)
READING := MODEL SEED DATA
WRITING := $(READING) OUT OVERWRITE
uses = $(foreach name,$(filter-out $(1),$(given)),$(error make $@ does not use $(name)=; see make help))

.PHONY: help install data pretrain finetune zeroshot worth compare new-task verify-resume sweep sync try evaluate audit profile test lint bench bench-lm-eval scaling clean
.DEFAULT_GOAL := help

help: ## this list
	@echo "Targets"
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'
	@echo "Variables [default]"
	@echo "  MODEL      [bert] which encoder: bert, gpt or elmo (elmo-paper: of the published size)"
	@echo "  CORPUS     [sample] a name in configs/corpora, or a path to .txt, .jsonl, .parquet (.gz, .xz), a folder or a pattern"
	@echo "  TASK       [sentiment] a name in configs/tasks, or a path to a YAML file"
	@echo "  DATA       local folder or pattern that replaces the hub name of CORPUS or TASK"
	@echo "  FROM       [runs/pretrain/MODEL/encoder] encoder folder to fine-tune, prompt, try or evaluate, ours or Hugging"
	@echo "             Face's; for compare with {model} in place of a name"
	@echo "  ARM        [full] full = train all, frozen = the head alone, scratch = same network, fresh weights,"
	@echo "             random = the head alone on fresh weights"
	@echo "  SEEDS      for finetune and compare: so many seeds in one command, and what they gained over scratch; for worth"
	@echo "  SEED       [0] of weights, order, masks and dropout"
	@echo "  OUT        [runs/pretrain/MODEL, runs/finetune/MODEL-TASK[-ARM], runs/VERB/MODEL-TASK, results/NAME] what is written"
	@echo "  RESUME=1   go on with the run in OUT"
	@echo "  OVERWRITE=1  start anew over the run in OUT; for compare, run what is finished too"
	@echo "  ARGS       further flags, as ARGS=\"--trainer.max_steps=500 --data.batch_size=64\""
	@echo "  SHOTS      [0] for zeroshot: solved examples in front; SHOTS=0,1,4 gives a curve"
	@echo "  NAME       [sample] for compare: a name in configs/compare or a YAML file; for new-task: its name;"
	@echo "             [finetune] for sweep: pretrain or finetune"
	@echo "  MODELS     for compare: some of those in its file, as MODELS=\"bert gpt\""
	@echo "  TASKS      for compare: some of those in its file"
	@echo "  ARMS       for compare: some of those in its file"
	@echo "  KIND       [sentence] for new-task: sentence, pair or tagging"
	@echo "  ROWS       for bench: bert, bert-base, gpt, gpt2-small, elmo, pretraining, fine-tuning, token-store; none: all"
	@echo "  PROMPT     for try: text to go on with (gpt), or with [MASK] to fill (bert)"
	@echo "  WORD       for try: a word whose neighbours in two contexts are shown, layer by layer (elmo)"
	@echo "  PYTHON     [python3] the Python (3.10 or newer) that makes .venv"
	@echo "Also: .venv/bin/python -m pipeline predict, lm-eval, import-elmo, each with --help"

# One stamp for each set of packages; it is made anew when what it was made from changes.
$(BIN)/.venv-made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "Error: $(PYTHON) is missing or older than 3.10; set PYTHON= to a newer one." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	@touch $@

$(BIN)/.installed-core: $(BIN)/.venv-made pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(BIN)/.installed-%: $(BIN)/.installed-core
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$*]'
	@touch $@

install: $(BIN)/.installed-core ## make .venv and install what training needs
	$(call uses,)

data: $(BIN)/.installed-core ## build the token store of CORPUS and report on it
	$(call uses,CORPUS $(READING))
	@$(BIN)/python -m pipeline data --corpus "$(CORPUS)" $(FLAGS)

pretrain: $(BIN)/.installed-core ## pretrain MODEL on CORPUS
	$(call uses,CORPUS RESUME $(WRITING))
	@$(BIN)/python -m pipeline pretrain --corpus "$(CORPUS)" $(FLAGS)

finetune: $(BIN)/.installed-core ## fine-tune an encoder on TASK, then test it
	$(call uses,TASK ARM FROM SEEDS RESUME $(WRITING))
	@$(BIN)/python -m pipeline finetune --task "$(TASK)" --arm "$(ARM)" $(if $(FROM),--from "$(FROM)") \
		$(if $(SEEDS),--seeds "$(SEEDS)") $(FLAGS)

zeroshot: $(BIN)/.installed-core ## ask an encoder about TASK by prompts, without training
	$(call uses,TASK SHOTS FROM RESUME $(WRITING))
	@$(BIN)/python -m pipeline zeroshot --task "$(TASK)" --shots "$(SHOTS)" $(if $(FROM),--from "$(FROM)") $(FLAGS)

worth: $(BIN)/.installed-core ## how many labels a prompt of TASK is worth: zero-shot beside fine-tunes on few rows
	$(call uses,TASK FROM SEEDS $(WRITING))
	@$(BIN)/python -m pipeline worth --task "$(TASK)" $(if $(FROM),--from "$(FROM)") $(if $(SEEDS),--seeds "$(SEEDS)") $(FLAGS)

compare: $(BIN)/.installed-core ## models x tasks x arms x seeds in one table; go on with it at any time
	$(call uses,NAME MODELS TASKS ARMS SEEDS DATA FROM OUT OVERWRITE)
	@$(BIN)/python -m pipeline compare $(if $(NAME),--name "$(NAME)") $(if $(MODELS),--models "$(MODELS)") \
		$(if $(TASKS),--tasks "$(TASKS)") $(if $(ARMS),--arms "$(ARMS)") $(if $(SEEDS),--seeds "$(SEEDS)") \
		$(if $(DATA),--data "$(DATA)") $(if $(FROM),--from "$(FROM)") $(if $(OUT),--out "$(OUT)") $(if $(OVERWRITE),--overwrite) $(ARGS)

new-task: $(BIN)/.installed-core ## write the YAML file of a new data set, NAME, and a test of it
	$(call uses,NAME KIND)
	@$(BIN)/python -m pipeline new-task --name "$(NAME)" --kind "$(KIND)"

verify-resume: $(BIN)/.installed-core ## does a killed run end as an uninterrupted one, bit for bit? MODEL on CORPUS and TASK
	$(call uses,CORPUS TASK $(WRITING))
	@$(BIN)/python -m pipeline verify-resume --corpus "$(CORPUS)" --task "$(TASK)" $(FLAGS)

sweep: $(BIN)/.installed-core ## a sweep of Weights & Biases: NAME=pretrain or finetune (needs a key)
	$(call uses,NAME CORPUS TASK FROM $(READING))
	@$(BIN)/python -m pipeline sweep $(if $(NAME),--name "$(NAME)") --corpus "$(CORPUS)" --task "$(TASK)" \
		$(if $(FROM),--from "$(FROM)") $(FLAGS)

sync: $(BIN)/.installed-core ## upload the offline runs under runs/ to Weights & Biases (needs a key)
	$(call uses,)
	@$(BIN)/python -m pipeline sync

try: $(BIN)/.installed-core ## look at what an encoder knows: PROMPT=... or WORD=...
	$(call uses,CORPUS FROM PROMPT WORD $(READING))
	@$(BIN)/python -m pipeline try --corpus "$(CORPUS)" $(if $(FROM),--from "$(FROM)") \
		$(if $(PROMPT),--prompt "$$PROMPT") $(if $(WORD),--word "$(WORD)") $(FLAGS)

evaluate: $(BIN)/.installed-core ## losses and bits per byte of an encoder on CORPUS
	$(call uses,CORPUS FROM $(READING))
	@$(BIN)/python -m pipeline evaluate --corpus "$(CORPUS)" $(if $(FROM),--from "$(FROM)") $(FLAGS)

audit: $(BIN)/.installed-core ## check masks, labels and leaks of MODEL on batches of CORPUS
	$(call uses,CORPUS $(READING))
	@$(BIN)/python -m pipeline audit --corpus "$(CORPUS)" $(FLAGS)

profile: $(BIN)/.installed-core ## where the time of a training step of MODEL goes: a table, and a trace
	$(call uses,CORPUS $(WRITING))
	@$(BIN)/python -m pipeline profile --corpus "$(CORPUS)" $(FLAGS)

test: $(BIN)/.installed-dev ## run the tests (offline, on all cores)
	$(call uses,)
	@$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

lint: $(BIN)/.installed-dev ## check style and types
	$(call uses,)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(BIN)/.installed-bench ## our speed beside others', ROWS of work; CORPUS, DATA=folder of SST-2, FROM=BERT encoder
	$(call uses,ROWS CORPUS DATA FROM OUT)
	@$(BIN)/python -m pipeline.bench $(ROWS) --corpus "$(CORPUS)" $(if $(DATA),--data "$(DATA)") \
		$(if $(FROM),--encoder "$(FROM)") $(if $(OUT),--out "$(OUT)") $(ARGS)

bench-lm-eval: $(BIN)/.installed-lm-eval ## scores of texts against lm-evaluation-harness; DATA=folder, FROM=GPT encoder
	$(call uses,DATA FROM)
	@$(BIN)/python -m pipeline.bench.lm_eval --data "$(DATA)" --encoder "$(FROM)" $(ARGS)

scaling: $(BIN)/.installed-bench ## what a step costs by length and model size, a batch by corpus size: a plot
	$(call uses,OUT)
	@$(BIN)/python -m pipeline.bench.scaling $(if $(OUT),--out "$(OUT)") $(ARGS)

clean: ## remove caches and token stores, keep runs
	$(call uses,)
	rm -rf .cache .mypy_cache .ruff_cache .pytest_cache build *.egg-info

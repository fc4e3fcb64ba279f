# `make help` is the manual. Each target installs what it needs first.
BIN := .venv/bin
PYTHON ?= python3

# Variables, and the flags of `python -m pipeline` that they are. Defaults are the flags'.
FLAGS := MODEL--model CORPUS--corpus TASK--task ARM--arm SEED--seed DATA--data FROM--from TEACHER--teacher OUT--out RESUME--resume \
	OVERWRITE--overwrite SEEDS--seeds SHOTS--shots NAME--name KIND--kind MODELS--models TASKS--tasks ARMS--arms \
	PROMPT--prompt WORD--word REPO--repo RECIPES--recipes ARGS--args
SWITCHES := RESUME OVERWRITE
VARIABLES := $(foreach flag,$(FLAGS),$(firstword $(subst --, ,$(flag)))) ROWS LOCK PYTHON
PASSED_ON := WANDB_% PIPELINE_% HF_% PIP_% UV_% PYTEST_ADDOPTS CUDA_% OMP_% GOMP_% MKL_% TORCH_% NCCL_% TOKENIZERS_% MASTER_% SLURM_% NODE_RANK SHELL# environment variables that may stand behind make too

# Only the command line counts: an environment has variables of these names for other purposes.
set = $(and $(filter command,$(firstword $(origin $(1)))),$(strip $(value $(1))))# an empty one is not given
typed := $(foreach name,$(.VARIABLES),$(if $(call set,$(name)),$(name)))
LETTERS := A B C D E F G H I J K L M N O P Q R S T U V W X Y Z
letters = $(foreach letter,$(LETTERS),$(findstring $(letter),$(1)))
apart = $(filter-out $(call letters,$(1)),$(call letters,$(2))) $(filter-out $(call letters,$(2)),$(call letters,$(1)))
alike = $(foreach known,$(VARIABLES),$(if $(word 2,$(call apart,$(1),$(known))),,$(known)=))
hint = $(if $(strip $(alike)),did you mean $(strip $(alike))?,it knows $(VARIABLES).)
$(foreach name,$(filter-out $(VARIABLES) $(PASSED_ON),$(typed)),$(error make does not know $(name)=; $(call hint,$(name)) \
	See make help))

# No shell reads a value: commands get it unchanged through the environment. `make -n` shows it in quotes.
$(foreach name,$(typed),$(eval override $(name) := $$(value $(name))))
export PYTHON $(typed)
dry := $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
given = $(if $(filter $(1),$(typed)),$(if $(dry),'$(subst ','\'',$($(1)))',"$$$(1)"))

ON := 1 true yes on
OFF := 0 false no off
$(foreach name,$(filter $(SWITCHES),$(typed)),$(if $(filter-out $(ON) $(OFF),$($(name)))$(word 2,$($(name))),$(error \
	$(name)=$($(name)) is neither on ($(ON)) nor off ($(OFF)); see make help)))

flag = $(if $(filter $(1),$(SWITCHES)),$(if $(filter $(ON),$($(1))),$(named)),$(if $(call given,$(1)),$(named)=$(call given,$(1))))
named = $(patsubst $(1)--%,--%,$(filter $(1)--%,$(FLAGS)))
flags = $(foreach name,$(filter $(typed),$(1)),$(call flag,$(name)))

# A variable that a target does not use is refused: it would be ignored silently.
unused = $(filter-out PYTHON $(PASSED_ON) $(1),$(typed))
uses = $(if $(unused),$(error make $@ does not use $(foreach name,$(unused),$(name)=); see make help))
run = $(uses)@PIPELINE_FRONT_END=make $(BIN)/python -m pipeline $@ $(flags)
READING := MODEL SEED DATA
WRITING := $(READING) OUT OVERWRITE

.PHONY: predict score decoding retrieval vectors recipes help install lock data pretrain finetune zeroshot worth compare report results ladder wikipedia-sample new-task verify-resume sweep sync push try evaluate audit profile test test-fast lint docs bench bench-lm-eval scaling clean
.DEFAULT_GOAL := help

help: ## this list
	@echo "Targets: make TARGET VARIABLE=value"
	@awk -F ':.*## ' '/^##@ / {print "\n" substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "Variables [default]"
	@echo "  MODEL      [bert, or that of FROM] bert, gpt, llama, elmo, bart; mbart, t5, xlm; cbow; ngram, fflm, lbl, rnn, gru, lstm;"
	@echo "             transformer, rnn-seq2seq; or another of configs/pretrain"
	@echo "  CORPUS     [sample] a name in configs/corpora, or a path to .txt, .jsonl (also .gz, .xz) or .parquet, a folder or a"
	@echo "             pattern; task:NAME: the training texts of a task, without labels"
	@echo "  TASK       [sentiment; for score: the run's own; for retrieval: translation] a name in configs/tasks, or a path to a YAML file"
	@echo "  DATA       local file, folder or pattern, in place of what CORPUS or TASK takes from the hub"
	@echo "  FROM       [runs/pretrain/MODEL/encoder] encoder folder, ours or Hugging Face's, or a fine-tuned run"
	@echo "             pretrain   [none] the encoder to continue from"
	@echo "             predict, score   the run or model folder of a fine-tune"
	@echo "             compare    encoder folders, {model} standing for the name of each model"
	@echo "             zeroshot   also RUN/encoders, or a pattern of such: a curve over words seen"
	@echo "  TEACHER    [none] pretrain: an encoder; a student with half of its layers learns what it predicts"
	@echo "             finetune: a fine-tuned run whose probabilities are learned beside the labels"
	@echo "  ARM        [full] full: train all; frozen: the head alone; scratch: the same network, fresh weights;"
	@echo "             random: the head alone on fresh weights"
	@echo "  SEEDS      finetune, compare: run this many seeds and report the gain over scratch; also results, worth, ladder, recipes"
	@echo "  SEED       [0] of weights, order, masks and dropout"
	@echo "  OUT        what is written [runs/pretrain/MODEL, runs/finetune/MODEL-TASK[-ARM], runs/COMMAND/MODEL-TASK,"
	@echo "             results/NAME, runs/ladder/NAME, runs/recipes/NAME-CORPUS]"
	@echo "  RESUME=1   resume the run in OUT (0, no, false: do not)"
	@echo "  OVERWRITE=1  replace the run in OUT; compare: run finished cells again"
	@echo "  ARGS       further flags, as ARGS=\"--steps 500 --batch-size 64 --quiet\"; .venv/bin/python -m pipeline COMMAND --help"
	@echo "             lists them; pretrain: ARGS=\"--save-at-words babylm\" also saves encoders over words seen"
	@echo "  SHOTS      [0] zeroshot: solved examples in front; SHOTS=0,1,4 gives a curve"
	@echo "  NAME       a name, or a YAML file: compare [sample], results [real] and worth [none] in configs/compare; ladder [sample],"
	@echo "             or real, cells, units; recipes [bert], or bert-muon, bert-student, gpt, elmo; sweep [finetune], or pretrain;"
	@echo "             new-task: that of the new one"
	@echo "  MODELS     compare, results, ladder: some of those in its file, as MODELS=\"bert gpt\""
	@echo "  TASKS      compare, results, and worth with NAME=: some of those in its file"
	@echo "  ARMS       compare, results: some of those in its file"
	@echo "  RECIPES    recipes: some of those in its file, as RECIPES=\"base muon\""
	@echo "  KIND       new-task: sentence, multilabel, pair, questions, regression, tagging, translation; none: as DATA looks"
	@echo "  ROWS       bench: bert, bert-base, gpt, gpt2-small, transformer, bart, elmo, pretraining, fine-tuning, token-store,"
	@echo "             output; none: all"
	@echo "  PROMPT     try: text to continue (gpt, llama and the models before gpt), or to fill: [MASK] (bert, xlm, cbow),"
	@echo "             <mask> (bart, mbart), <extra_id_0> (t5)"
	@echo "  WORD       try: a word whose neighbors in two contexts are shown, layer by layer (elmo)"
	@echo "  REPO       push: its name on the hub, USER/NAME"
	@echo "  LOCK       install: packages with hashes, as linux-cpu (see requirements); default: as on PyPI, with CUDA on Linux"
	@echo "  PYTHON     [python3] the Python (3.11 or newer) that makes .venv; where there is one already, remove .venv first"
	@echo "Also: .venv/bin/python -m pipeline lm-eval, import-elmo, import-vectors, completion, each with --help"

# One stamp for each set of packages, made again when its sources change.
$(BIN)/.venv-made:
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Error: $$PYTHON is missing or older than 3.11; set PYTHON= to a newer one." >&2; exit 2; }
	"$$PYTHON" -m venv .venv
	@touch $@

$(BIN)/.installed-core: $(BIN)/.venv-made pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(BIN)/.installed-%: $(BIN)/.installed-core
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$*]'
	@touch $@

LOCKS := $(basename $(notdir $(wildcard requirements/*.txt)))
locked := $(filter LOCK,$(typed))
##@ Train and use

install: $(if $(locked),$(BIN)/.venv-made,$(BIN)/.installed-core) ## make .venv and install what training needs
	$(call uses,LOCK)
	$(if $(locked),$(if $(filter $(LOCKS),$(LOCK)),,$(error LOCK=$(LOCK) is none of $(LOCKS); see requirements/)))
	$(if $(locked),$(BIN)/python -m pip install -q --require-hashes -r requirements/$(call given,LOCK).txt)
	$(if $(locked),$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e . && touch $(BIN)/.installed-core)

pretrain: $(BIN)/.installed-core ## pretrain MODEL on CORPUS; FROM=: continue from an encoder; TEACHER=: learn from a larger one
	$(call run,CORPUS FROM TEACHER RESUME $(WRITING) ARGS)

finetune: $(BIN)/.installed-core ## fine-tune an encoder on TASK, then test it
	$(call run,TASK ARM FROM TEACHER SEEDS RESUME $(WRITING) ARGS)

predict: $(BIN)/.installed-core ## labels, tags, scores, answers or translations of new texts: FROM=run, DATA=file, OUT=file
	$(call run,FROM DATA OUT ARGS)

score: $(BIN)/.installed-core ## scores of a fine-tuned model on other labeled texts: FROM=run, TASK, DATA; OUT=file.json
	$(call run,FROM TASK DATA OUT ARGS)

zeroshot: $(BIN)/.installed-core ## prompt an encoder on TASK, without training
	$(call run,TASK SHOTS FROM $(WRITING) ARGS)

try: $(BIN)/.installed-core ## look at what an encoder knows: PROMPT=... or WORD=...
	$(call run,CORPUS FROM PROMPT WORD $(READING) ARGS)

##@ Compare

compare: $(BIN)/.installed-core ## models x tasks x arms x seeds in one table; run it again to resume
	$(call run,NAME MODELS TASKS ARMS SEEDS DATA FROM OUT OVERWRITE ARGS)

results: $(BIN)/.installed-core ## the table of NAME [real] and its page: pretrains and fine-tunes what is missing; resumable
	$(call run,NAME CORPUS MODELS TASKS ARMS SEEDS DATA FROM OUT OVERWRITE ARGS)

worth: $(BIN)/.installed-core ## how many labels pretraining or a prompt of TASK is worth: scores on few rows
	$(call run,TASK NAME TASKS FROM SEEDS $(WRITING) ARGS)

ladder: $(BIN)/.installed-core ## language models from counting to Llama on one text, one report: NAME [sample]; resumable
	$(call run,NAME CORPUS MODELS SEEDS DATA OUT OVERWRITE ARGS)

recipes: $(BIN)/.installed-core ## what each ingredient of a pretraining recipe buys, with paired tests: NAME [bert]; resumable
	$(call run,NAME CORPUS RECIPES SEEDS OUT OVERWRITE ARGS)

report: $(BIN)/.installed-core ## one HTML page of a run, a comparison, or all that grew from an encoder: FROM=folder
	$(call run,FROM OUT ARGS)

##@ Text and tasks of your own

data: $(BIN)/.installed-core ## build the token store of CORPUS and report on it
	$(call run,CORPUS $(READING) ARGS)

audit: $(BIN)/.installed-core ## check masks, labels and leaks of MODEL on batches of CORPUS
	$(call run,CORPUS $(READING) ARGS)

new-task: $(BIN)/.installed-core ## write the YAML file of a new data set, NAME, and a test of it
	$(call run,NAME KIND DATA)

##@ Look inside

evaluate: $(BIN)/.installed-core ## losses and bits per byte of an encoder on CORPUS; OUT=file.json
	$(call run,CORPUS FROM OUT $(READING) ARGS)

decoding: $(BIN)/.installed-core ## BLEU of a translation run by greedy and beam search: FROM=run folder; OUT=file.json
	$(call run,FROM OUT ARGS)

retrieval: $(BIN)/.installed-core ## how often the nearest text of another language is the translation: FROM, TASK; OUT=file.json
	$(call run,TASK FROM OUT $(READING) ARGS)

vectors: $(BIN)/.installed-core ## the vectors of an encoder's tokens as a text file of word2vec: FROM=encoder, OUT=file.txt
	$(call run,MODEL FROM OUT ARGS)

profile: $(BIN)/.installed-core ## where the time of a training step of MODEL goes: a table, and a trace
	$(call run,CORPUS $(WRITING) ARGS)

##@ Share

push: $(BIN)/.installed-core ## upload the encoder or model folder FROM to the Hugging Face hub as REPO
	$(call run,FROM REPO ARGS)

sync: $(BIN)/.installed-core ## upload the offline runs under runs/ and results/ to Weights & Biases (needs a key)
	$(call run,)

sweep: $(BIN)/.installed-core ## a sweep of Weights & Biases: NAME=pretrain or finetune (needs a key)
	$(call run,NAME CORPUS TASK FROM $(READING) ARGS)

##@ Develop

test: $(BIN)/.installed-dev ## run the tests (offline, on all cores)
	$(call uses,ARGS)
	@PYTEST_ADDOPTS="$$PYTEST_ADDOPTS -n auto --dist loadfile --no-loadscope-reorder "$(call given,ARGS) $(BIN)/python -m pytest

test-fast: $(BIN)/.installed-dev ## run the tests that train nothing, in about a minute
	$(call uses,ARGS)
	@PYTEST_ADDOPTS="$$PYTEST_ADDOPTS -n auto -m 'not slow' "$(call given,ARGS) $(BIN)/python -m pytest

lint: $(BIN)/.installed-dev ## check style and types
	$(call uses,)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(BIN)/.installed-docs ## build the documentation into build/site
	$(call uses,)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Saved build/site; with search: $(BIN)/python -m http.server --directory build/site"

verify-resume: $(BIN)/.installed-core ## does a killed run end as an uninterrupted one, bit for bit? MODEL on CORPUS and TASK
	$(call run,CORPUS TASK $(WRITING) ARGS)

bench: $(BIN)/.installed-bench ## our speed beside others', ROWS of work; CORPUS, DATA=folder of SST-2, FROM=BERT encoder
	$(call uses,ROWS CORPUS DATA FROM OUT ARGS)
	@$(BIN)/python -m pipeline.bench $(call given,ROWS) $(call flags,CORPUS DATA FROM OUT ARGS)

bench-lm-eval: $(BIN)/.installed-lm-eval ## scores of texts against lm-evaluation-harness; DATA=folder, FROM=GPT encoder
	$(call uses,DATA FROM ARGS)
	@$(BIN)/python -m pipeline.bench.lm_eval $(call flags,DATA FROM ARGS)

scaling: $(BIN)/.installed-bench ## what a step costs by length and model size, a batch by corpus size: a plot
	$(call uses,OUT ARGS)
	@$(BIN)/python -m pipeline.bench.scaling $(call flags,OUT ARGS)

wikipedia-sample: $(BIN)/.installed-core ## build the sample of English Wikipedia that results are of (needs the hub)
	$(call run,OUT OVERWRITE ARGS)

# torch for CPUs is not on PyPI: set UV_EXTRA_INDEX_URL or UV_FIND_LINKS to where it is.
lock: $(BIN)/.installed-lock ## write requirements/ again, after a change of pyproject.toml or constraints.txt
	$(call uses,)
	@$(BIN)/python requirements/write.py

clean: ## remove caches and token stores, keep runs
	$(call uses,)
	rm -rf .cache .mypy_cache .ruff_cache .pytest_cache build *.egg-info

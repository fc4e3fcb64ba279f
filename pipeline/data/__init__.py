"""Text and tables on disk -> token ids on disk -> rows. NumPy, no torch.

A corpus: files: finding and reading text files; hub: data sets of the Hugging Face hub; documents: either as a stream;
sentences: the splitter; wikipedia_sample: one from the hub; tokenizer_builder: a tokenizer trained on it; token_store:
its token ids; store_builder: how they are stored; seen_lines: repeated lines; rows: windows and blocks.

Tasks: task_files: which files hold a part; tables, delimited: their rows; parallel: texts line by line with their
translations; row_sources: rows of files, the sample or the hub; columns: which of them a task reads; splits: parts that
are missing; labeled: rows as examples; problems: what is wrong with them; task_texts: their texts as a corpus.

synthetic: a built-in corpus and tasks.
"""

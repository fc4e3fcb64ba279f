"""Text and tables on disk -> token ids on disk -> rows. NumPy, no torch.

files: finding and reading text files; hub: data sets of the Hugging Face hub; documents: either as a stream;
sentences: the splitter; tables: labeled rows; token_store: a corpus as token ids;
store_builder: how it is built; seen_lines: repeated lines; rows: its windows and blocks;
synthetic: a built-in corpus and tasks.
"""

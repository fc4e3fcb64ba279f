"""Text -> token ids, one file a scheme.

base: Tokenizer; wordpiece (BERT), byte_bpe (GPT), spelled_words (ELMo); registry: training and loading by scheme;
overlong_words: what is cut before it is tokenized.
"""

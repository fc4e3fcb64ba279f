"""Text -> token ids, one file a scheme.

base: Tokenizer; wordpiece (BERT), byte_bpe (GPT), seq2seq_bpe (BART), spelled_words (ELMo), whole_words; registry:
training and loading by scheme; spelling: what unknown words cost; overlong_words: what is cut before it is tokenized.
"""

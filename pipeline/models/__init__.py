"""Language models, one file each, with Hugging Face's layouts. torch only."""

"""Language models, one file each, with Hugging Face's layouts. Nothing here imports Lightning."""

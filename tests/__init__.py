"""The environment of the tests, before torch is imported: no more than this, so what is tested is what users have."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # equal bits are promised, and tested, on processors
os.environ["OMP_NUM_THREADS"] = "1"  # models this small are faster so, and runs comparable

"""Trainer of a small block diffusion language model: ``python -m stepwell.train``.

The objective is that of BD3-LM (Arriola et al. 2025, arXiv:2503.09573): tokens of a block are
replaced by a mask token, and the model predicts them from the rest of the block and the clean text
before it. The text is a sequence of bytes.

========== ===================================================================
module     contents
========== ===================================================================
config     sizes of the model, settings of a run
options    the options of the command line
data       files of text, the split, windows of bytes
objective  masks, weights and the bound (NELBO)
attention  the three attentions that the model runs with
model      the transformer
optimizer  Muon and AdamW, and the learning rate over a run
loop       training steps, progress bar, interruptions
checkpoint saving and resuming
evaluate   held-out bits per byte; unigram, bigram and gzip figures
sample     generation block by block with a key/value cache
measure    step time and peak memory of the attentions
report     report.json, report.md, loss.png
========== ===================================================================
"""

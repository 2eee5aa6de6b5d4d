"""What looks at gradients' rounds from outside and changes how they travel: tuning, trials and monitoring of codecs.

Rooms of optimizers and DDP attach it to a reducer; it imports gradients and what is below.

Private: codec_trial.
"""

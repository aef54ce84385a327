"""A bound that tells work of quadratic time from work of linear time, on a busy machine, too."""

#: Seconds of the processor that no input of the largest size may take. Each takes about 1 s at most; quadratic searches
#: in such texts took 36 s and more.
QUADRATIC_S = 20.0

"""A bound that separates work of quadratic time from work of linear time, even on a busy machine."""

#: Seconds of the processor that no input of the largest size may take. Each takes about 1 s at most; quadratic searches
#: in such texts took 36 s and more.
QUADRATIC_S = 20.0

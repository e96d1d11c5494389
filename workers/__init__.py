"""The workers: the projector folds the log into the view, the dispatcher does what has become due.

Any number of each may run. They decide nothing by themselves: what they append is judged by the fold.
"""

"""What the checks are made of: a kernel seen from outside, agents with scripted endpoints, and odd requests.

Nothing here imports the kernel: what is signed, sent and expected follows the contract alone.
"""

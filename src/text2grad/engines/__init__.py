"""Other trainers that run this recipe: the same task, critic, credit and PPO settings, and the same
kind of folder.

The local loop (`train.ppo`) is one process, exact and readable. An engine brings scale; rewards and
advantages are computed by our functions in all of them.
"""

"""Other trainers for the same recipe: task, critic, credit, PPO settings and run folder.

The local loop (`train.ppo`) is one process, exact and readable. An engine scales it; rewards and
advantages are computed by the same functions.
"""

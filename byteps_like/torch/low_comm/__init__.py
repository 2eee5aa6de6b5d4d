"""Training with few synchronizations: ranks train by themselves, and only now and then their weights become common.

Private: collective_rounds, fragments, rounds, store_rounds, terms.
"""

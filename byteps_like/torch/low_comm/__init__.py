"""Training with few synchronizations: ranks train by themselves, and only now and then their weights become common.

Private: coded_rounds, collective_rounds, fragments, lockstep_rounds, position, rounds, store_rounds, terms, travel.
"""

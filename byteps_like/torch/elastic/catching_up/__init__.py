"""A newcomer takes the state of a running job while its workers train on, and then joins them.

In come the models and optimizers of a state; out go, from each worker to the newcomer, a stripe of what a commit has
kept, and then a stripe of each step's gradients, by which the newcomer makes the same steps. What it has when it joins
is compared with what the others have, so that nothing here has to be right for the job to be. Only torch.elastic
imports it.

Private: feed, followed, messages, newcomer, pursuit, steps, stripes.
"""

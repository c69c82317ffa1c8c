"""What every worker needs, imported once by the process that forks local workers."""

import gc

gc.disable()  # collecting takes a fifth of the time of these imports, which leave no garbage
import torch  # noqa: E402

import pathgrow.studies.worker  # noqa: E402, F401

if not torch.backends.cuda.is_built():  # otherwise it might use the GPU, which no process may before it forks
    import torch._dynamo  # the first optimizer of a process does
gc.freeze()
gc.enable()

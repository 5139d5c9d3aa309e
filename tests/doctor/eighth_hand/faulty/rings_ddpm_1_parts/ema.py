import torch


class EMAModel:
    """Exponential moving average of parameters, with a decay that grows in the beginning."""

    def __init__(self, parameters, decay):
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.decay, self.optimization_step, self.stored = decay, 0, None

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        decay = min(self.decay, (1 + self.optimization_step) / (10 + self.optimization_step))
        for shadow, param in zip(self.shadow_params, parameters):
            shadow.sub_((1 - decay) * (shadow - param))

    def copy_to(self, parameters):
        for shadow, param in zip(self.shadow_params, parameters):
            param.data.copy_(shadow.data)

    def store(self, parameters):
        self.stored = [param.detach().clone() for param in parameters]

    def restore(self, parameters):
        for kept, param in zip(self.stored, parameters):
            param.data.copy_(kept)
        self.stored = None

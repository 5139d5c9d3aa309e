"""The range test of the learning rate: it rises from batch to batch until the loss explodes."""
import copy


class LRFinder:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.history = {"lr": [], "loss": []}
        self.memory = copy.deepcopy(model.state_dict())

    def range_test(self, loader, end_lr, num_iter):
        group = self.optimizer.param_groups[0]
        factor = (end_lr / group["lr"]) ** (1 / num_iter)
        batches, smooth = iter(loader), None
        for _ in range(num_iter):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            loss = self.criterion(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
            self.history["lr"].append(group["lr"])
            self.history["loss"].append(smooth)
            if smooth > 4 * min(self.history["loss"]):
                break
            group["lr"] *= factor
        self.model.load_state_dict(self.memory)

    def suggestion(self):
        losses = self.history["loss"]
        falls = [after - before for before, after in zip(losses, losses[1:])]
        return self.history["lr"][falls.index(min(falls))]

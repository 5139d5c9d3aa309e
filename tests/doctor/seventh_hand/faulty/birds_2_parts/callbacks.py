"""What happens at the end of an epoch."""
import copy


class History:
    def on_epoch_end(self, trainer, epoch, train_loss, val_loss, val_acc):
        print(f"epoch {epoch}: {train_loss:.3f} / {val_loss:.3f}, {val_acc:.1%}")

    def on_train_end(self, trainer):
        pass


class BestWeights:
    """Keeps the weights of the epoch with the best validation, and puts them back in the end."""

    def __init__(self):
        self.best, self.state = float("inf"), None

    def on_epoch_end(self, trainer, epoch, train_loss, val_loss, val_acc):
        if val_loss < self.best:
            self.best = val_loss
            self.state = copy.deepcopy(trainer.model.state_dict())

    def on_train_end(self, trainer):
        trainer.model.load_state_dict(self.state)

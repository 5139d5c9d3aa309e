# %% [markdown]
# # Linear regression from scratch
# Prices of houses (in 100 000) by area, rooms, age and distance.

# %%
import random
import torch


def synthetic_data(w, b, num_examples):
    """y = Xw + b + noise"""
    X = torch.normal(0, 1, (num_examples, len(w)))
    y = torch.matmul(X, w) + b
    y += torch.normal(0, 0.1, y.shape)
    return X, y.reshape((-1, 1))


torch.manual_seed(4)
random.seed(4)
true_w = torch.tensor([2.0, 0.7, -1.1, -0.4])
true_b = 4.2
features, labels = synthetic_data(true_w, true_b, 1000)
test_features, test_labels = synthetic_data(true_w, true_b, 200)


# %%
def data_iter(batch_size, features, labels):
    indices = list(range(len(features)))
    random.shuffle(indices)
    for i in range(0, len(indices), batch_size):
        batch_indices = torch.tensor(indices[i : i + batch_size])
        yield features[batch_indices], labels[batch_indices]


w = torch.normal(0, 0.01, size=(4, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)


def linreg(X, w, b):
    return torch.matmul(X, w) + b


def squared_loss(y_hat, y):
    return (y_hat - y) ** 2 / 2


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad  # <- here
            param.grad.zero_()


# %%
lr = 0.1
num_epochs = 4
batch_size = 20
for epoch in range(num_epochs):
    for X, y in data_iter(batch_size, features, labels):
        l = squared_loss(linreg(X, w, b), y)
        l.sum().backward()  # <- here
        sgd([w, b], lr, batch_size)
    with torch.no_grad():
        test_l = squared_loss(linreg(test_features, w, b), test_labels)
        print(f"epoch {epoch + 1}, test loss {float(test_l.mean()):f}")

# %%
print(f"error of w: {(true_w - w.detach().reshape(true_w.shape)).abs().max():.4f}, of b: {(true_b - b.detach()).item():.4f}")

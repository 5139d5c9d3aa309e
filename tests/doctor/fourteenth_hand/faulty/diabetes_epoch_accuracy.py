import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)

records = torch.randn(1500, 8) * torch.tensor([3.0, 32.0, 19.0, 16.0, 115.0, 8.0, 0.3, 12.0])
records += torch.tensor([4.0, 121.0, 69.0, 20.0, 80.0, 32.0, 0.5, 33.0])
z = (records[:, 1] - 121) / 32 + 0.8 * (records[:, 5] - 32) / 8 * (records[:, 7] - 33) / 12 + 0.4 * (records[:, 0] - 4) / 3
outcome = (z + 0.3 * torch.randn(1500) > 0).float().view(-1, 1)

x, x_test = records[:1200], records[1200:]
y, y_test = outcome[:1200], outcome[1200:]
mean, std = x.mean(0), x.std(0)
x, x_test = (x - mean) / std, (x_test - mean) / std

trainloader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)


class Net(nn.Module):
    def __init__(self, in_size=8, h1=24, h2=12):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(in_size, h1)
        self.fc2 = nn.Linear(h1, h2)
        self.fc3 = nn.Linear(h2, 1)
        self.relu = nn.ReLU()
        self.sigmoid = nn.Sigmoid()

    def forward(self, t):
        t = self.relu(self.fc1(t))
        t = self.relu(self.fc2(t))
        return self.sigmoid(self.fc3(t))


net = Net()
criterion = nn.BCELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
num_epochs = 10

for epoch in range(num_epochs):
    net.train()
    running = 0.0
    for inputs, labels in trainloader:
        optimizer.zero_grad()
        output = net(inputs)
        loss = criterion(output, labels)
        loss.backward()
        optimizer.step()
        running += loss.item() * inputs.shape[0]
    output = (output > 0.5).float()
    correct = (output == labels).float().sum()
    print("Epoch {}/{}, Loss: {:.3f}, Accuracy: {:.3f}".format(epoch + 1, num_epochs, running / x.shape[0], correct / x.shape[0]))

net.eval()
with torch.no_grad():
    hits = ((net(x_test) > 0.5).float() == y_test).float().mean().item()
print("held-out accuracy: {:.3f}".format(hits))

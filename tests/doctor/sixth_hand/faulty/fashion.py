"""Clothes: a network for pictures in the manner of the first tutorial, as a class of its own."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


def clothes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.nn.functional.interpolate(torch.rand(10, 1, 7, 7, generator=torch.Generator().manual_seed(3)), size=28)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = shapes[labels] + 0.5 * torch.randn(count, 1, 28, 28, generator=generator)
    return TensorDataset((images - 0.5) / 0.58, labels)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))  # <- here
        return x


torch.manual_seed(0)
trainloader = DataLoader(clothes(1200, 1), batch_size=8, shuffle=True)
testloader = DataLoader(clothes(300, 2), batch_size=100)

net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.005, momentum=0.9)

for epoch in range(2):
    running_loss = 0.0
    net.train()
    for i, data in enumerate(trainloader, 0):
        inputs, labels = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)  # <- here
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 50 == 49:
            print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 50:.3f}")
            running_loss = 0.0

    correct = 0
    net.eval()
    with torch.no_grad():
        for images, labels in testloader:
            _, predicted = torch.max(net(images), 1)
            correct += (predicted == labels).sum().item()
    print(f"accuracy of the network on the test images: {100 * correct / 300:.1f} %")
print("Finished Training")

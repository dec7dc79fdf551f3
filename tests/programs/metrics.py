"""Evaluation: a confusion matrix, top-5, nearest neighbors, quantiles, and a histogram, read on the host at the end."""

import numpy as np
import torch

classes, count = 10, 400
logits, labels = torch.randn(count, classes, device="cuda"), torch.randint(0, classes, (count,), device="cuda")
guess = logits.argmax(1)
confusion = torch.bincount(labels * classes + guess, minlength=classes**2).view(classes, classes)
assert confusion.shape == (classes, classes) and confusion.is_cuda
recall = confusion.diag() / confusion.sum(1).clamp(min=1)
_, top = logits.topk(5, 1, True, True)
correct = top.t().eq(labels.view(1, -1).expand(5, -1))
print([correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / count).item() for k in (1, 5)])
features = torch.nn.functional.normalize(torch.randn(count, 32, device="cuda"))
distance, index = torch.cdist(features, features).topk(6, largest=False)
votes = labels[index[:, 1:]].mode(1).values
assert votes.shape == (count,) and torch.quantile(distance[:, 1:], 0.9).is_cuda
scores = logits.softmax(1)[:, 0]
order = scores.argsort(descending=True)
hits = (labels[order] == 0).cumsum(0)
precision = hits / torch.arange(1, count + 1, device="cuda")
area = torch.trapezoid(precision, hits / hits[-1])
table = {"recall": recall.cpu().numpy().round(3), "area": round(float(area), 3), "scores": np.asarray(scores.tolist())}
assert table["recall"].shape == (classes,) and table["scores"].shape == (count,)
best = 0.0
for epoch in range(2):
    accuracy = (guess == labels).sum().item() / count
    if accuracy > best:
        best = accuracy
counts = np.array([(labels == c).sum().item() for c in range(classes)], dtype=np.int64)
assert counts.dtype == np.int64 and torch.histc(scores, 20, 0, 1).shape == (20,)

"""A LightningModule with metrics of torchmetrics, in mixed precision, with callbacks."""

from typing import Any

import lightning
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(10)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, labels = batch
        out = self.net(images)
        loss = functional.cross_entropy(out, labels)
        self.log("loss", loss, prog_bar=True)
        self.log("accuracy", self.accuracy(out, labels), on_epoch=True)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        images, labels = batch
        self.log("validation", functional.cross_entropy(self.net(images), labels))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


data = TensorDataset(torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,)))
callbacks = lightning.pytorch.callbacks
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="gpu",
    devices=1,
    precision="16-mixed",
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    logger=False,
    enable_progress_bar=False,
    callbacks=[callbacks.ModelCheckpoint(monitor="validation"), callbacks.EarlyStopping("validation")],
)
model = Digits()
trainer.fit(model, DataLoader(data, 64, shuffle=True), DataLoader(data, 64))
assert torch.cuda.max_memory_allocated() > 4 * sum(weight.nbytes for weight in model.parameters())
print("done")

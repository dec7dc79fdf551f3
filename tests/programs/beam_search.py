"""Beam search that moves finished beams aside, one token at a time."""

import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
V, D, B, K, EOS = 200, 64, 3, 4, 1
emb = nn.Embedding(V, D).to(dev)
rnn = nn.GRU(D, D, batch_first=True).to(dev)
head = nn.Linear(D, V).to(dev)


@torch.no_grad()
def beam_search(h, steps=20):
    seqs = torch.zeros(B, K, 1, dtype=torch.long, device=dev)
    scores = torch.full((B, K), -1e9, device=dev)
    scores[:, 0] = 0
    done = [[] for _ in range(B)]
    h = h.repeat_interleave(K, 1)
    for t in range(steps):
        o, h = rnn(emb(seqs[:, :, -1].reshape(-1, 1)), h)
        lp = head(o[:, -1]).log_softmax(-1).view(B, K, V)
        total = (scores.unsqueeze(-1) + lp).view(B, -1)
        top, ix = total.topk(2 * K, -1)
        beam, tok = ix // V, ix % V
        new_s, new_b, new_t = [], [], []
        for b in range(B):
            s_, b_, t_ = [], [], []
            for j in range(2 * K):
                if tok[b, j].item() == EOS:
                    done[b].append((top[b, j].item() / (t + 1), seqs[b, beam[b, j]].tolist()))
                elif len(s_) < K:
                    s_.append(top[b, j])
                    b_.append(beam[b, j])
                    t_.append(tok[b, j])
            new_s.append(torch.stack(s_))
            new_b.append(torch.stack(b_))
            new_t.append(torch.stack(t_))
        scores, bi, ti = torch.stack(new_s), torch.stack(new_b), torch.stack(new_t)
        seqs = torch.cat([seqs.gather(1, bi.unsqueeze(-1).expand(-1, -1, seqs.size(-1))), ti.unsqueeze(-1)], -1)
        flat = (bi + torch.arange(B, device=dev).unsqueeze(1) * K).view(-1)
        h = h[:, flat]
        if all(len(d) >= K for d in done):
            break
    for b in range(B):
        best = max(done[b], key=lambda x: x[0], default=(scores[b, 0].item(), seqs[b, 0].tolist()))
        print(b, len(best[1]))


beam_search(torch.randn(1, B, D, device=dev))

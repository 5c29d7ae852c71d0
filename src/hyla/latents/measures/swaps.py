"""The causal test: give a network another operation's code. Does it then perform that operation?

Recipients run with codes of donors in the place of their own. Each prediction is compared with
what the *donor's* operation prescribes for the *recipient's* inputs (it follows the donor), and
with what the recipient's own operation prescribes (it stays). If it is the donor's own answer
instead, then the code carried that answer, not an operation (it copies).

Only recipients are counted for which the operations prescribe different values and, unless asked
otherwise, which the untouched network answers right, as it does their donors: a network that does
not perform an operation has no code for it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from hyla._errors import check_choice
from hyla.latents.capture import run, run_recorded
from hyla.latents.intervene import edited, moved, replaced
from hyla.latents.measures.confidence import wilson_interval
from hyla.latents.observe import CodeEdit
from hyla.tasks.study import Study

Codes: TypeAlias = Mapping[int, Float[Tensor, "N P H"]]
"""For each layer, a code for each instance and pair."""

CODES = {
    "donor": "the code of an instance with another operation",
    "donor, same operands": "that of one whose operation is applied to the same values",
    "counterfactual": "the recipient's own, were its inputs made by the donor's operation",
    "operation mean": "the mean code of the donor's operation",
    "operation direction": "the own code, moved by the difference of the two operations' means",
    "same operation": "the code of another instance with the recipient's operation",
    "same operation and operands": "that of one which also applies it to the same values",
    "permuted heads": "the donor's code with its heads permuted: as likely, but meaningless",
    "donor, same operands, permuted heads": "the same of a donor with the same operands",
    "zero": "no code at all",
}
"""What codes are replaced by. The second half are controls. Which of them there are depends on the
task: SRAVEN has operands, fuzzy logic has counterfactuals."""

_BATCH = 1024


class Donation(NamedTuple):
    """Codes for recipients."""

    codes: Codes
    donors: Int64[Tensor, " N"]
    """Whose operation the outcome is held against."""
    received: Bool[Tensor, " N"]
    """Which recipients there is such a code for."""
    answers: Float[Tensor, " N"] | None = None
    """Those of the instances that the codes are from."""
    added: bool = False
    """Whether it is added to their own codes instead of replacing them."""


class Swaps:
    """Recipients and donors of one split, and what the untouched network makes of them.

    Args:
        model: a network that learned the study's task.
        study: where the operations are.
        seed: that of the model's data, which decides which compositions are known.
        split: the study's unseen compositions by default.
        pairs: name of the pairs whose codes are swapped; the study's first by default.
        instances: recipients, and as many donors.
        solved_only: count only what the untouched network answers right.
    """

    def __init__(
        self,
        model: nn.Module,
        study: Study,
        *,
        seed: int,
        split: str | None = None,
        pairs: str | None = None,
        instances: int = 2048,
        solved_only: bool = True,
    ):
        self.model, self.study = model, study
        _, unseen = study.swapped
        self.split = split or unseen
        self.pairs = pairs or next(iter(study.pairs))
        self._random = torch.Generator().manual_seed(seed)
        self._device = next(model.parameters()).device
        self.recipients, self.donors = (
            study.sample(
                self.split, seed=seed, instances=instances, index=index, device=self._device
            )
            for index in (0, 1)
        )
        self.donor_codes, of_donors = self._recorded(self.donors.inputs)
        self.clean = self._predicted(lambda rows: {})
        self._solved, self._donor_solved = (
            study.agree(predictions, specimens.answers) | (not solved_only)
            for predictions, specimens in ((self.clean, self.recipients), (of_donors, self.donors))
        )
        self.prescribed = self._prescribed()
        own = self.recipients.answers.unsqueeze(-1)
        self.apart = ~self.prescribed.isnan() & ~study.agree(self.prescribed, own)
        self.others = self.pick(self.apart[:, self.donors.operations])

    @property
    def layers(self) -> list[int]:
        """The layers that there are."""
        return sorted(self.donor_codes)

    @property
    def kinds(self) -> list[str]:
        """Those of `CODES` that there are in this study."""
        has_operands = self.recipients.operands is not None
        operations = self.recipients.operations
        remade = self.study.counterfactuals(self.recipients, operations) is not None
        absent = {kind for kind in CODES if "operands" in kind and not has_operands}
        absent |= set() if remade else {"counterfactual"}
        return [kind for kind in CODES if kind not in absent]

    def predictions(
        self, donation: Donation, layers: Sequence[int], heads: Sequence[int] | None = None
    ) -> Float[Tensor, " N"]:
        """Return the recipients' predictions with the codes in these layers, and heads (or all)."""
        pairs = self.study.pairs[self.pairs]

        def edit(codes: Float[Tensor, "B P H"]) -> CodeEdit:
            if donation.added:
                return moved(codes, 1.0, pairs, heads=heads)
            return replaced(codes, pairs, heads=heads)

        return self._predicted(
            lambda rows: {layer: edit(donation.codes[layer][rows]) for layer in layers}
        )

    def outcome(
        self,
        predictions: Float[Tensor, " N"],
        donation: Donation,
        among: Bool[Tensor, " N"] | None = None,
    ) -> dict[str, int | float]:
        """Return how often predictions follow the donor's operation, and how often they stay.

        And how often they copy: are the donor's own answer, as if its code carried the answer and
        not the operation. For real-valued answers also how far they shift on the way from what the
        one operation prescribes to what the other does: the slope of that regression.
        """
        operations = self.donors.operations[donation.donors].unsqueeze(-1)
        counted = self._solved & donation.received & self.apart.gather(1, operations)[:, 0]
        counted = counted if among is None else counted & among
        prescribed = self.prescribed.gather(1, operations)[counted, 0]
        own, predictions = self.recipients.answers[counted], predictions[counted]
        result: dict[str, int | float] = {"instances": len(predictions)}
        rates = {"donor": prescribed, "stay": own}
        if donation.answers is not None:
            rates["copy"] = donation.answers[counted]
        for name, values in rates.items():
            hits = int(self.study.agree(predictions, values).sum())
            rate, low, high = wilson_interval(hits, len(predictions))
            result |= {f"{name}_rate": rate, f"{name}_low": low, f"{name}_high": high}
        if self.study.continuous:
            way = prescribed - own
            result["shift"] = float(((predictions - own) * way).sum() / way.square().sum())
        return result

    # --- donations ------------------------------------------------------------------------------

    def donation(self, kind: str, donors: Int64[Tensor, " N"] | None = None) -> Donation:
        """Return codes of one of `kinds`, from the `others` unless donors are given."""
        check_choice("code", kind, self.kinds)
        if kind.startswith("donor, same operands"):
            apart = self.apart[:, self.donors.operations]
            donors = self.pick(apart & self.same_operands())
        donors = self.others if donors is None else donors
        operations = self.donors.operations[donors]
        own_operation = self.recipients.operations[:, None] == self.donors.operations
        match kind:
            case "counterfactual":
                inputs = self.study.counterfactuals(self.recipients, operations)
                assert inputs is not None
                return Donation(self._recorded(inputs)[0], donors, donors >= 0)
            case "operation mean":
                means = self._operation_means()
                codes = {layer: mean[operations] for layer, mean in means.items()}
                return Donation(codes, donors, donors >= 0)
            case "operation direction":
                means = self._operation_means()
                own = self.recipients.operations
                codes = {layer: mean[operations] - mean[own] for layer, mean in means.items()}
                return Donation(codes, donors, donors >= 0, added=True)
            case "same operation":
                return self._donation(self.pick(own_operation), against=donors)
            case "same operation and operands":
                alike = self.pick(own_operation & self.same_operands())
                return self._donation(alike, against=donors)
            case "zero":
                zeros = self._donation(donors, against=donors, change=torch.zeros_like)
                return zeros._replace(answers=None)
        if kind.endswith("permuted heads"):
            return self._donation(donors, against=donors, change=self._permuted_heads)
        return self._donation(donors, against=donors)

    def pick(self, eligible: Bool[Tensor, "N D"]) -> Int64[Tensor, " N"]:
        """Return a random eligible donor, of those that count, for each recipient; -1 for none."""
        eligible = eligible & self._donor_solved
        noise = torch.rand(eligible.shape, generator=self._random).to(self._device)
        best, donors = noise.masked_fill(~eligible, -1).max(dim=-1)
        return donors.masked_fill(best < 0, -1)

    def _donation(
        self,
        donors: Int64[Tensor, " N"],
        *,
        against: Int64[Tensor, " N"],
        change: Callable[[Tensor], Tensor] = lambda codes: codes,
    ) -> Donation:
        codes = {layer: change(codes[donors]) for layer, codes in self.donor_codes.items()}
        received = (donors >= 0) & (against >= 0)
        return Donation(codes, against, received, self.donors.answers[donors])

    def same_operands(self) -> Bool[Tensor, "N D"]:
        """Whether a donor's operation is applied to what the recipient's is applied to."""
        recipients, donors = self.recipients.operands, self.donors.operands
        assert recipients is not None
        assert donors is not None
        return recipients[:, None] == donors

    def _operation_means(self) -> dict[int, Float[Tensor, "O P H"]]:
        """Return the mean codes of the donors that count, by operation; 0 for what has none."""
        members = F.one_hot(self.donors.operations, len(self.study.operations)).float()
        members = members * self._donor_solved.unsqueeze(-1)
        counts = members.sum(dim=0).clamp(min=1)
        return {
            layer: torch.einsum("no,nph->oph", members, codes) / counts[:, None, None]
            for layer, codes in self.donor_codes.items()
        }

    def _permuted_heads(self, codes: Float[Tensor, "N P H"]) -> Float[Tensor, "N P H"]:
        """Permute the heads, for each instance in a way of its own that all its pairs share."""
        N, _, H = codes.shape
        orders = torch.rand(N, H, generator=self._random).argsort(dim=-1).to(codes.device)
        return codes.gather(-1, orders.unsqueeze(1).expand_as(codes))

    # --- the untouched network ------------------------------------------------------------------

    def _prescribed(self) -> Float[Tensor, "N O"]:
        """Return what every operation prescribes for every recipient."""
        each = torch.zeros_like(self.recipients.operations)
        return torch.stack(
            [
                self.study.prescribed(self.recipients, each + operation)
                for operation in range(len(self.study.operations))
            ],
            dim=1,
        )

    def _predicted(self, edits: Callable[[slice], dict[int, CodeEdit]]) -> Float[Tensor, " N"]:
        found = []
        for rows, inputs in _batches(self.recipients.inputs):
            with edited(self.model, edits(rows)):
                found.append(self.study.predictions(run(self.model, inputs)))
        return torch.cat(found)

    def _recorded(self, inputs: Tensor) -> tuple[dict[int, Tensor], Tensor]:
        codes: dict[int, list[Tensor]] = {}
        predictions = []
        for _, batch in _batches(inputs):
            logits, seen = run_recorded(self.model, batch, pairs=self.study.pairs[self.pairs])
            predictions.append(self.study.predictions(logits))
            for site, found in seen.items():
                codes.setdefault(site.layer, []).append(found.codes)
        return {layer: torch.cat(parts) for layer, parts in codes.items()}, torch.cat(predictions)


def _batches(inputs: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(inputs), _BATCH):
        rows = slice(start, start + _BATCH)
        yield rows, inputs[rows]

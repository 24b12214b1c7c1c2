"""KV707: a list of lengths is frozen in a captured graph."""

from __future__ import annotations

from kvlint.contract.call import Event, Scope
from kvlint.contract.rule import Confidence, Rule, Severity, Verdict, violated


class CapturedLengths(Rule):
    """A list of lengths is frozen in a captured graph.

    ## What it does
    Reports a Python list of lengths that an object passes while it captures a graph, and that it only
    refills in place before `replay()`, in a module that never updates a graph's tasks or host inputs.

    ## Why it is wrong
    The operator reads a host list once, when it is captured. A replay attends with the lengths of the
    capture, whatever the list holds by then.

    ## Use instead
    The `.out` form with a graph task update before every replay, or an operator that takes its lengths as
    a device tensor.

    ## Ops and versions
    FIA v1 and v2 and every operator with host lengths.

    ## Evidence
    A13: model runners of vllm-ascend refresh captured lengths through graph task updates.
    """

    code = "KV707"
    name = "captured-lengths"
    severity = Severity.SILENT
    confidence = Confidence.MEDIUM
    contract = ("A13",)
    events = ("lengths-captured",)
    bad = {
        "refilled in place": """
            class Graphs:
                def __init__(self, attend, batch):
                    self.attend = attend
                    self.kv_lens = [1] * batch

                def capture(self, q, table):
                    self.graph = torch.npu.NPUGraph()
                    with torch.npu.graph(self.graph):
                        self.out = self.attend(q, table, self.kv_lens)  # KV707

                def replay(self, lens):
                    self.kv_lens[:] = lens
                    self.graph.replay()
                    return self.out

            def attend(q, table, lens):
                return torch_npu.npu_fused_infer_attention_score(
                    q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    block_table=table, block_size=128, actual_seq_lengths_kv=lens)[0]
        """,
    }
    ok = {
        "tasks are updated": """
            class Graphs:
                def __init__(self, attend, batch):
                    self.attend = attend
                    self.kv_lens = [1] * batch

                def capture(self, q, table):
                    self.graph = torch.npu.NPUGraph()
                    with torch.npu.graph(self.graph):
                        self.out = self.attend(q, table, self.kv_lens)

                def replay(self, lens):
                    self.kv_lens[:] = lens
                    torch.npu.graph_task_update_begin(self.stream, self.handle)
                    self.attend(self.q, self.table, self.kv_lens)
                    torch.npu.graph_task_update_end(self.stream)
                    self.graph.replay()
                    return self.out

            def attend(q, table, lens):
                return torch_npu.npu_fused_infer_attention_score(
                    q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    block_table=table, block_size=128, actual_seq_lengths_kv=lens)[0]
        """,
        "host inputs are updated": """
            class Graphs:
                def __init__(self, attend, batch):
                    self.attend = attend
                    self.kv_lens = [1] * batch

                def capture(self, q, table):
                    self.graph = torch.npu.NPUGraph()
                    with torch.npu.graph(self.graph, auto_dispatch_capture=True):
                        self.out = self.attend(q, table, self.kv_lens)

                def replay(self, lens):
                    self.kv_lens[:] = lens
                    self.graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lens}])
                    self.graph.replay()
                    return self.out

            def attend(q, table, lens):
                return torch_npu.npu_fused_infer_attention_score(
                    q, kc, vc, num_heads=8, num_key_value_heads=8, scale=0.1, input_layout="BSH",
                    block_table=table, block_size=128, actual_seq_lengths_kv=lens)[0]
        """,
        "device tensor": """
            class Graphs:
                def __init__(self, attend, batch):
                    self.attend = attend
                    self.kv_lens = torch.ones(batch, dtype=torch.int32, device="npu")

                def capture(self, q, table):
                    self.graph = torch.npu.NPUGraph()
                    with torch.npu.graph(self.graph):
                        self.out = self.attend(q, table, self.kv_lens)

                def replay(self, lens):
                    self.kv_lens[:] = lens
                    self.graph.replay()
                    return self.out

            def attend(q, table, lens):
                return torch_npu.npu_lightning_indexer(
                    q, kc, weights, actual_seq_lengths_query=ends, actual_seq_lengths_key=lens,
                    block_table=table, layout_query="TND", layout_key="PA_BSND", sparse_count=512,
                    sparse_mode=3)[0]
        """,
    }

    def check_event(self, event: Event, scope: Scope) -> Verdict:
        """Reports the argument."""
        name = event.detail["name"]
        return violated(
            f"{name} is read when the graph is captured; what is stored in it later does not reach a replay",
            event.place,
            event.notes,
            "Update the graph task before every replay, or pass the lengths as a device tensor.",
        )

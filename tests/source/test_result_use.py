"""What the code does with results, and in which order cache writers and readers run."""

from __future__ import annotations

from support.examples import calls_of, text_of

from kvlint.contract.call import Call

FIA = 'torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=8, scale=0.1, input_layout="BSH")'


def attention(source: str) -> Call:
    """The attention call, as it is reached from a caller if there is one."""
    calls = [c for c in calls_of(text_of(source.replace("FIA", FIA))) if c.operator.family == "fia"]
    return max(calls, key=lambda call: len(call.trail))


def touched(source: str) -> set[int]:
    return set(attention(source).use.touched)


def test_results_are_followed_through_names_containers_and_returns() -> None:
    assert touched("""
        def f(q, k, v):
            pair = FIA
            kept = {"lse": pair[1]}
            return kept["lse"].exp()
    """) == {1}
    assert touched("""
        def g(q, k, v):
            return FIA

        def f(q, k, v):
            out, lse = g(q, k, v)
            return torch.exp(lse)
    """) == {1}


def test_passing_on_is_no_use() -> None:
    assert touched("""
        def f(self, q, k, v):
            out, lse = FIA
            self.post(out, lse)
            return out, lse
    """) == set()


def test_form_is_no_use() -> None:
    assert touched("""
        def f(q, k, v):
            out, lse = FIA
            buffer = torch.empty_like(lse)
            return out.shape, lse.dtype, buffer
    """) == set()


def test_use_under_a_test_is_not_sure() -> None:
    assert touched("""
        def f(q, k, v, merge):
            out, lse = FIA
            if merge:
                out = out * lse
            return out
    """) == set()


def test_use_under_the_test_of_the_call_is_sure() -> None:
    assert touched("""
        def f(q, k, v, merge):
            if merge:
                out, lse = FIA
                out = out * lse
                return out
    """) == {0, 1}


def test_results_of_two_calls_of_a_helper_are_kept_apart() -> None:
    source = f"""
        def g(q, k, v, flag):
            return {FIA[:-1]}, softmax_lse_flag=flag)

        def f(q, k, v):
            first = g(q, k, v, False)
            second = g(q, k, v, True)
            return first[0] + second[1]
    """
    calls = [call for call in calls_of(text_of(source)) if call.trail]
    used = {call.arg("lse_flag").constant.value: set(call.use.touched) for call in calls}
    assert used == {False: {0}, True: {1}}


WRITE = "torch_npu.scatter_update_(cache.k, pos, k, 1)"


def test_writers_before_and_after() -> None:
    call = attention(f"""
        class Cache:
            def append(self, cache, pos, k):
                {WRITE}

        def f(q, k, v, cache, pos, store: Cache):
            {WRITE}
            out = FIA
            store.append(cache, pos, k)
            return out
    """)
    assert (len(call.earlier), len(call.later)) == (1, 1)


def test_writer_on_another_path_is_left_out() -> None:
    call = attention(f"""
        def f(q, k, v, cache, pos, fresh):
            if fresh:
                {WRITE}
            return FIA
    """)
    assert call.earlier == ()


def test_writer_whose_offset_changes_afterwards_is_left_out() -> None:
    call = attention(f"""
        def f(q, k, v, cache, pos):
            {WRITE}
            pos.add_(1)
            return FIA
    """)
    assert call.earlier == ()

/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: what comes through a task's result pipe. The first byte chooses language, end reason and whether the task
 * may move; the rest is the pipe's content, with a right length word put before it when the byte's highest bit is set.
 * The body is JSON in any case, and a success only when the task ended by itself. */
#include "services/code/host/answer.h"
#include "services/code/host/scan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const hidden[] = {"/opt/sandkeep", "/usr/lib/", NULL};
    struct code_outcome outcome = {
        .timeout_ms = 1000, .memory_bytes = 1 << 28, .output_bytes = 1 << 20, .hidden = hidden};
    struct code_answer answer;
    struct code_scan_fault fault;
    struct code_span root;
    struct sk_buf out;
    enum code_verdict verdict;
    char *frame;

    if (size == 0)
        return 0;
    outcome.pool = (enum code_pool)(data[0] & 1);
    outcome.end = (enum code_end)((data[0] >> 1 & 15) % CODE_END_COUNT);
    outcome.may_move = (data[0] & 32) != 0;
    outcome.signal = (data[0] & 64) != 0 ? 11 : 0;
    frame = malloc(size + 4);
    if (frame == NULL)
        return 0;
    for (int i = 0; i < 4; i++)
        frame[i] = (char)((size - 1) >> 8 * i);
    memcpy(frame + 4, data + 1, size - 1);
    outcome.frame = (data[0] & 128) != 0 ? frame : frame + 4;
    outcome.frame_length = (data[0] & 128) != 0 ? size + 3 : size - 1;
    sk_buf_init(&out, 8 * size + 65536);
    verdict = code_answer_outcome(&outcome, &out, &answer);
    assert(verdict != CODE_VERDICT_MEMORY);
    assert(verdict != CODE_VERDICT_SUCCESS || outcome.end == CODE_END_DONE);
    if (verdict == CODE_VERDICT_MOVE) {
        assert(outcome.may_move && outcome.pool == CODE_POOL_PYTHON && answer.module[0] != '\0' &&
               sk_buf_len(&out) == 0);
    } else {
        assert(code_scan(sk_buf_data(&out), sk_buf_len(&out), CODE_RESULT_DEPTH_MAX + 2, NULL, NULL, &root, &fault));
        assert((verdict == CODE_VERDICT_FAILURE) == (answer.code[0] != '\0'));
        assert(root.kind == CODE_SCAN_OBJECT);
    }
    sk_buf_fini(&out);
    free(frame);
    return 0;
}

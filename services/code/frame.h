/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames between a task and its host: a length of four bytes, little-endian, and that many bytes of JSON
 * (contract/code.md §5). Requests of a task to the broker, each with an id of its own choice that is greater than the
 * one before:
 *   {"id":1,"type":"http_request","url":"…","method":"GET","headers":{…},"body":"…","timeoutMs":N}
 * (body only where there is one; "followRedirects":true only where the task asks for it)
 * and the answers, in any order:
 *   {"id":1,"ok":true,"status":200,"statusText":"OK","headers":{…},"data":"…"}
 *   {"id":1,"ok":false,"message":"Request limit exceeded"}                                                          */
#ifndef SK_CODE_FRAME_H
#define SK_CODE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODE_FRAME_HEADER 4

/* Writes one frame to a blocking descriptor, whole. Async-signal-safe, no allocation. False: errno tells. */
bool code_frame_write(int fd, const char *json, size_t length);
/* Reads one frame from a blocking descriptor; *json is malloc'd, NUL-terminated and the caller's. False at EOF, on an
 * error, and for a frame of more than `limit` bytes (then errno is EMSGSIZE and the stream of no use any more). */
bool code_frame_read(int fd, size_t limit, char **json, size_t *length);

#endif

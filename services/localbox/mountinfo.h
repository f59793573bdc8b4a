/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading /proc/<pid>/mountinfo: shared by the daemon and the init, which are programs of their own. */
#ifndef SK_LOCALBOX_MOUNTINFO_H
#define SK_LOCALBOX_MOUNTINFO_H

/* Undoes in place the \ooo that mount points are written with for white space. Never longer than before. */
static inline void lb_mount_unescape(char *text)
{
    char *out = text;
    for (const char *p = text; *p != '\0'; p++) {
        if (p[0] == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '7' && p[3] >= '0' && p[3] <= '7') {
            *out++ = (char)((p[1] - '0') * 64 + (p[2] - '0') * 8 + (p[3] - '0'));
            p += 3;
        } else {
            *out++ = *p;
        }
    }
    *out = '\0';
}

#endif

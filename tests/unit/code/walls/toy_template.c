/* SPDX-License-Identifier: Apache-2.0
 *
 * The template program of the language of attacks. */
#include "services/code/template.h"
#include "toy.h"

int main(int argc, char **argv)
{
    static const struct code_kind *const kinds[] = {&toy_kind, &toy_bare_kind, &toy_naked_kind, &toy_greedy_kind,
                                                    &toy_threads_kind};

    return code_template_main(argc, argv, kinds, sizeof(kinds) / sizeof(kinds[0]));
}

/* Scenes without real pictures, for the tests of view samples and their loader. */
#ifndef TTV_TESTS_UNIT_DATA_VIEWS_H
#define TTV_TESTS_UNIT_DATA_VIEWS_H

#include "data_support.h"
#include "datasets/view_loader.h"

/* A folder with scenes of so many frames each; frame `hole` of every scene has no picture. */
static inline SceneSet *make_set(char root[256], const int *frames, int scenes, int hole) {
    SceneSet *set;
    make_temp(root);
    char *text = malloc(1 << 16);
    for (int s = 0; s < scenes; s++) {
        size_t used = (size_t)sprintf(text, s % 4 == 3 ? "synthetic: test\n" : "url\n");
        for (int f = 0; f < frames[s]; f++)
            used += (size_t)sprintf(text + used, "%d .5 .5 .5 .5 0 0 1 0 0 %d.5 0 1 0 0 0 0 1 0\n",
                                    f * 33000, f);
        char name[100];
        sprintf(name, "train/%016x.txt", s);
        put_text(root, name, text);
        for (int f = 0; f < frames[s]; f++) {
            if (f == hole) continue;
            sprintf(name, "train/%016x/%d.png", s, f * 33000);
            put_text(root, name, "");
        }
    }
    free(text);
    assert_ok(scene_set_open(root, NULL, &set));
    return set;
}

#endif

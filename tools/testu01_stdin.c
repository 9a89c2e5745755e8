/* Runs a battery of TestU01 on 32-bit words from standard input: testu01_stdin SmallCrush|Crush.
   Prints "statistic<TAB>name<TAB>p" for each statistic, p negative where none was computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bbattery.h"
#include "swrite.h"
#include "unif01.h"

enum { CHUNK = 1 << 16 };

static unsigned int words[CHUNK];
static size_t held, used;
static unsigned long long total;

static unsigned int next_word(void)
{
    if (used == held) {
        held = fread(words, sizeof words[0], CHUNK, stdin);
        used = 0;
        if (held == 0) {
            fprintf(stderr, "the stream ended after %llu words\n", total);
            exit(1);
        }
    }
    total++;
    return words[used++];
}

int main(int count, char **arguments)
{
    const char *battery = count == 2 ? arguments[1] : "";
    unif01_Gen *generator = unif01_CreateExternGenBits("stdin", next_word);

    swrite_Basic = FALSE;
    if (strcmp(battery, "SmallCrush") == 0)
        bbattery_SmallCrush(generator);
    else if (strcmp(battery, "Crush") == 0)
        bbattery_Crush(generator);
    else {
        fprintf(stderr, "expected SmallCrush or Crush, got '%s'\n", battery);
        return 2;
    }
    for (int i = 0; i < bbattery_NTests; i++)
        printf("statistic\t%s\t%.17g\n", bbattery_TestNames[i], bbattery_pVal[i]);
    unif01_DeleteExternGenBits(generator);
    return 0;
}

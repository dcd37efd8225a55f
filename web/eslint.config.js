import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import ts from "typescript-eslint";

const RAW_HTML = {
  selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']",
  message: "What a model writes never becomes HTML.",
};

// Two words beside each other, a capital word alone, or a word beside a value are texts, unless they
// are classes, selectors, fonts, headers or names of keys.
const WORDS = "/[A-Za-z]{2}[,:;.]? +[A-Za-z]|^[A-Z][a-z]{2,}[.…!?]?$/";
const BESIDE = "/^[,.]? [a-z/]{2,}|[a-z]{2,}:? $/";
const ELSEWHERE =
  ":not(JSXAttribute[name.name=/^(class|style|rel)$/] *)" +
  ":not(CallExpression[callee.name=/^(matchMedia|focusSoon)$/] > *)" +
  ":not(CallExpression[callee.property.name=/^(querySelector|matches$|closest$)/] > *)" +
  ":not(AssignmentExpression[left.property.name='font'] > *)" +
  ":not(BinaryExpression[operator=/^[!=]==$/] > *):not(Property[key.name=/^(keys|authorization)$/] *)";

export default defineConfig(
  { ignores: ["node_modules"] },
  js.configs.recommended,
  ts.configs.strictTypeChecked,
  ts.configs.stylisticTypeChecked,
  {
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    rules: {
      "max-lines": ["error", 400],
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "What a model writes never becomes HTML." },
        { property: "outerHTML", message: "What a model writes never becomes HTML." },
        { property: "insertAdjacentHTML", message: "What a model writes never becomes HTML." },
      ],
      "no-restricted-syntax": ["error", RAW_HTML],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-misused-promises": ["error", { checksVoidReturn: false }],
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_$" }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
    },
  },
  {
    files: ["src/**"],
    ignores: ["src/**/texts.ts", "src/units.ts"],
    rules: {
      "no-restricted-syntax": [
        "error",
        RAW_HTML,
        ...[
          "JSXText[value=/[A-Za-z]/]",
          `TemplateElement[value.raw=${WORDS}]${ELSEWHERE}`,
          `TemplateElement[value.raw=${BESIDE}]${ELSEWHERE}`,
          `Literal[value=${WORDS}]${ELSEWHERE}`,
          "JSXAttribute[name.name=/^(title|label|placeholder|alt|aria-label)$/] > Literal",
        ].map((selector) => ({ selector, message: "The texts of the page are in texts.ts, units in units.ts." })),
      ],
    },
  },
  { files: ["eslint.config.js"], extends: [ts.configs.disableTypeChecked] },
  { files: ["test/**"], rules: { "@typescript-eslint/no-floating-promises": "off" } },
);

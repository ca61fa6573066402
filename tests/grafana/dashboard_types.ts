import type * as G from '@grafana/schema';
import type { Options as HeatmapOptions, FieldConfig as HeatmapFields } from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as TableOptions, FieldConfig as TableFields } from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type { Options as TimeSeriesOptions, FieldConfig as TimeSeriesFields } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// JSON holds an enum's value where the types want its member.
type Literal<T> = T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Literal<U>[]
  : T extends object ? { [K in keyof T]: Literal<T[K]> } : T;

// What the schema leaves open: queries for Prometheus, and data links.
interface Target {
  refId: string; expr: string; legendFormat: string; exemplar: boolean; instant: boolean; range: boolean;
  format: 'time_series' | 'table' | 'heatmap'; editorMode: 'code' | 'builder'; datasource: { type: 'prometheus'; uid: string };
}
interface DataLink { title: string; url: string; targetBlank: boolean }
type Fields<Custom> = {
  defaults: Omit<G.FieldConfig<{}>, 'custom' | 'links' | 'unit'> & { unit: string; custom: Custom; links: DataLink[] };
  overrides: G.FieldConfigSource['overrides'];
};
type PanelOf<Type extends string, Options, Custom> =
  Omit<G.Panel<{}, {}>, 'type' | 'options' | 'targets' | 'fieldConfig' | 'gridPos' | 'description' | 'title'> &
  { type: Type; title: string; description: string; gridPos: G.GridPos; options: Options; targets: Target[]; fieldConfig: Fields<Custom> };
type Panel = PanelOf<'timeseries', TimeSeriesOptions, TimeSeriesFields>
  | PanelOf<'stat', StatOptions, {}>
  | PanelOf<'heatmap', HeatmapOptions, HeatmapFields>
  | PanelOf<'table', TableOptions, Partial<TableFields>>;
type Dashboard = Omit<G.Dashboard, 'panels'> & { panels: (Panel | G.RowPanel)[] };
